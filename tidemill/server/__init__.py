"""The server: everything that the engine knows and can do, over HTTP under `/api/v1`, with one live stream of changes.

`settings` says where and how safely, `gate` is what every request passes, `access` who may do what, `routes` has one
module per resource, `live` is the stream of changes, `site` puts them together and `role` is its life as a process.
"""
