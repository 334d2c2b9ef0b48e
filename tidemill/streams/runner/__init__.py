"""The dispatcher: reads sources, feeds engines, commits outcomes."""
