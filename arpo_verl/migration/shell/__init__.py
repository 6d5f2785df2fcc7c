"""A shell script, read as text: nothing of it is ever run.

`migration/shell/words.py: split_words` finds words, quotes, expansions and here-documents.
`migration/shell/parser.py: parse` makes commands of them, as `migration/shell/tree.py` names them.
`migration/shell/reader.py: Reader` follows these with the values that the script itself gives its variables.

We read shell ourselves because no library fits: bashlex has the GPL and knows no arrays, and tree-sitter would put two
compiled packages into every installation for one command.
"""
