"""What the small models learn from: the tokenizer and the corpora, all of it made from what every Python carries."""
