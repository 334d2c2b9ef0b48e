import { type ReactNode, useLayoutEffect, useRef, useState } from "react";
import { Button } from "./button";
import { ErrorMessage } from "./feedback";

/** A modal dialog; Escape and a click outside close it. */
export function Dialog({ title, onClose, children, wide = false }: { title: string; onClose: () => void; children: ReactNode; wide?: boolean }) {
  const ref = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const shown = ref.current;
    if (shown && !shown.open) shown.showModal();
    return () => shown?.close(); // Gives the focus back to what opened it.
  }, []);
  return (
    <dialog
      ref={ref}
      className={wide ? "dialog wide" : "dialog"}
      aria-label={title}
      onClose={onClose}
      onClick={(event) => event.target === ref.current && ref.current?.close()}
    >
      <div className="dialog-body">
        <header>
          <h2>{title}</h2>
          <Button kind="quiet" aria-label="Close" onClick={() => ref.current?.close()}>
            ✕
          </Button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

/** Asks before an action that cannot be undone, or that touches much. */
export function Confirm({ title, verb, act, onClose, children }: { title: string; verb: string; act: () => Promise<unknown>; onClose: () => void; children: ReactNode }) {
  const [error, setError] = useState<unknown>(null);
  return (
    <Dialog title={title} onClose={onClose}>
      <p>{children}</p>
      {error !== null && <ErrorMessage error={error} />}
      <footer>
        <Button onClick={onClose}>Close</Button>
        <Button kind="danger" onClick={() => act().then(onClose, setError)}>
          {verb}
        </Button>
      </footer>
    </Dialog>
  );
}
