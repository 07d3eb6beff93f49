"""What an epoch will take: rates of the machine, steps that are rehearsed, and timelines to look at."""
