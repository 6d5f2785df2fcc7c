"""What `arpo-verl doctor` looks at, a module a subject."""
