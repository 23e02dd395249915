"""The stages of `gradus run`, one after another: the recipe, what each stage does, and what commands share."""
