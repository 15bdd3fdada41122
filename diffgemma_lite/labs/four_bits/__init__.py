"""What four bits cost trained models: losses, agreement and steps part by part, and puzzles solved.

Notebook 10.
"""
