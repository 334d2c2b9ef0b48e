"""The gRPC face of the server: `tidemill.proto`, served by `serve`, with verbs that HTTP uses too."""
