"""The version of this code."""

VERSION = "0.1.0"
