"""Workers of one run: what dividing an epoch costs, and how unequal workers are balanced."""
