"""The command `taskd`: one file for each group of commands, loaded when one of its commands is called."""
