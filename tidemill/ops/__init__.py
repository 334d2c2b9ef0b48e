"""Operations: one typed function for everything that App, CLI, HTTP and gRPC can ask for or do.

To add an operation, write in the module of its noun:

    class AlertNote(Arguments):                                   # the arguments, one line of help each
        id: Annotated[int, doc("The alert.")]
        note: Annotated[str, doc("The note to store with it.")]

    @operation("POST /alerts/{id}/note", role="operator")         # fields named in the path come from the path
    async def note_alert(tx: Transaction, args: AlertNote) -> Alert:
        '''Store a note with an alert.'''
        ...                                                       # store functions; raise NotFoundError, ConfigError
        await tx.audit("alert.note", str(args.id))                # in the same transaction, in the caller's name
        return Alert(...)

An operation that takes a `Reader` reads, or commits in batches by `at.transaction()`. A third parameter
`declared: Declarations` says that it needs the application's code, `declared: Declarations | None` that it can do
without. The last field of a path may contain slashes: `{name:path}`. The HTTP route, its part of the OpenAPI document
and the remote client follow from the declaration. A CLI command calls `options.do(note_alert, args)`; a gRPC method is
one row in `server/rpc/methods.py`; a case in `tests/invariants/operations/` compares them all.
"""
