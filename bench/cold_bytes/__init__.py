"""What caches of the hot tier leave to read from the cold one, and how long reading features larger than memory takes."""
