"""A shell script, read as text: nothing of it is ever run.

`words.py: split_words` finds words, quotes, expansions and here-documents, `tree.py: parse` the commands and what decides
which of them run, and `reader.py: Reader` follows them with the values that the script itself gives its variables.

We read shell ourselves because no library fits: bashlex has the GPL and knows no arrays, and tree-sitter would put two
compiled packages into every installation for one command.
"""
