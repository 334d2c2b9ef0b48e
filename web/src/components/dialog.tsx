import { type ReactNode, useEffect, useRef } from "react";
import { Button } from "./button";

/** A modal dialog; Escape and a click outside close it. */
export function Dialog({ title, onClose, children, wide = false }: { title: string; onClose: () => void; children: ReactNode; wide?: boolean }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const shown = ref.current;
    if (shown && !shown.open) shown.showModal();
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
