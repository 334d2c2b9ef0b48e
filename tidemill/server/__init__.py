"""The server: every operation over HTTP under `/api/v1` and over gRPC, the console, and one live stream of changes.

`settings` says where it listens and who may call it. `middleware` is what every request passes, `routes` has the HTTP
routes, `rpc` the gRPC methods, `live` the stream of changes, `stream_endpoint` the addresses of single streams. `app`
puts them together, and `role` is the process.
"""
