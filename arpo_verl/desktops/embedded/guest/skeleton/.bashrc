PS1='user@desktop:\w\$ '
HISTFILE=
shopt -s checkwinsize
