"""The lowest layer of input and output: files, directories, platform calls."""
