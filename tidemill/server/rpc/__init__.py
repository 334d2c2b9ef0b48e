"""gRPC: a method for each operation, as `operations.proto` describes them, and live requests and changes."""
