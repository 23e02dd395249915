"""Small transformers that are made on the spot, in the ordinary Hugging Face format."""
