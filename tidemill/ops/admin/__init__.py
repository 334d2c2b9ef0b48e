"""Operations on the installation: overview, hosts, search, audit, tokens, retention."""
