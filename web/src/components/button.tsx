import { type ButtonHTMLAttributes, type MouseEvent, useState } from "react";

interface ButtonProps extends Omit<ButtonHTMLAttributes<HTMLButtonElement>, "onClick"> {
  kind?: "plain" | "main" | "danger" | "quiet";
  busy?: boolean;
  /** What a click does; the button is busy until a promise that it returns is settled. */
  onClick?: (event: MouseEvent<HTMLButtonElement>) => unknown;
}

/** A button; while it is busy it keeps the focus and takes no clicks. */
export function Button({ kind = "plain", busy = false, className = "", children, onClick, ...rest }: ButtonProps) {
  const [isWaiting, setWaiting] = useState(false);
  const isBusy = busy || isWaiting;
  const click = (event: MouseEvent<HTMLButtonElement>) => {
    if (isBusy) return event.preventDefault();
    const result = onClick?.(event);
    if (!(result instanceof Promise)) return;
    setWaiting(true);
    const end = () => setWaiting(false);
    result.then(end, end); // `useAction` shows why it failed.
  };
  return (
    <button type="button" className={`button ${kind} ${className}`} aria-disabled={isBusy || undefined} aria-busy={isBusy || undefined} onClick={click} {...rest}>
      {children}
    </button>
  );
}
