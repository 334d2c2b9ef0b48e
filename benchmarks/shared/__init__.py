"""What several suites use: the server, the peers' environment, how contenders are run, and the report."""
