"""The auto-blog: daily logs become summaries, summaries become posts, posts become podcasts."""
