"""Everything the command line does, as calls that return objects. ``import gradus`` gives the names that matter most."""
