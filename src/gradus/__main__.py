"""``python -m gradus``, which is how launchers start it: ``accelerate launch -m gradus grpo ...``."""

from gradus.commands.app import main

if __name__ == "__main__":
    main()
