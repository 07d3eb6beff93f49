"""Reports: what a person looks at. Tables, progress, and the state of the machine."""
