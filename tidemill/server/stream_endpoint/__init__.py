"""The endpoint of a stream: live requests at the addresses `Stream(grpc=..., http=...)`, beside its dispatcher."""
