"""Expressions of workflow files: JavaScript in `{{ }}`, the names it reads, and templates of commands and SQL."""
