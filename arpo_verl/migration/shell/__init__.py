"""This package reads a shell script as text, and never runs any part of it.

`migration/shell/words.py: split_words` finds words, quotes, expansions and here-documents.
`migration/shell/parser.py: parse` makes them into the commands of `migration/shell/tree.py`.
`migration/shell/reader.py: Reader` follows these with the values that the script gives its variables.

We read shell ourselves because no library fits: bashlex has the GPL and knows no arrays, and tree-sitter would add two
compiled packages to every installation for one command.
"""
