"""Products and attention that are faster than plain torch on some processors; GRADUS_PLAIN_TORCH=1 switches them off."""
