"""The classroom: follow every student's block programs, infer how they work, and tell the teacher whom to go to."""
