"""The runtime: runs the programs of layers and obeys the plans of epochs."""
