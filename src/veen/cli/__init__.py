"""The `veen` command. `app` lists the commands; each is a module or folder of its own, loaded when it is named."""
