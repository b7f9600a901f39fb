"""What features are made of: pictures and texts, listed and decoded."""
