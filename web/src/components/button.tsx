import type { ButtonHTMLAttributes } from "react";

type ButtonProps = ButtonHTMLAttributes<HTMLButtonElement> & { kind?: "plain" | "main" | "danger" | "quiet"; busy?: boolean };

export function Button({ kind = "plain", busy = false, className = "", children, disabled, ...rest }: ButtonProps) {
  return (
    <button type="button" className={`button ${kind} ${className}`} disabled={disabled || busy} aria-busy={busy} {...rest}>
      {children}
    </button>
  );
}
