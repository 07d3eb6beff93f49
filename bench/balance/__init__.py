"""How unequal workers of one run are balanced."""
