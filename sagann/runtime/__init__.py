"""The runtime: runs what the compiler made."""
