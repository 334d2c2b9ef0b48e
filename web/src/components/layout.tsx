/** The frame of a screen: its header, its panels, lists of facts and bars. */
import type { ReactNode } from "react";

export function Panel({ title, aside, children, className = "" }: { title?: ReactNode; aside?: ReactNode; children: ReactNode; className?: string }) {
  return (
    <section className={`panel ${className}`}>
      {title !== undefined && (
        <header>
          <h2>{title}</h2>
          {aside}
        </header>
      )}
      {children}
    </section>
  );
}

export function PageHeader({ title, subtitle, children }: { title: ReactNode; subtitle?: ReactNode; children?: ReactNode }) {
  return (
    <div className="head">
      <div>
        <h1>{title}</h1>
        {subtitle !== undefined && <p>{subtitle}</p>}
      </div>
      {children !== undefined && <div className="actions">{children}</div>}
    </div>
  );
}

/** A name and its value, inside a list of class `facts`; a wide one has a line of its own. */
export function Fact({ name, wide = false, children }: { name: string; wide?: boolean; children: ReactNode }) {
  return (
    <div className={wide ? "wide" : undefined}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** A bar from 0 to 1. */
export function Meter({ value, tone = "run", label }: { value: number; tone?: string; label?: string }) {
  const part = Math.max(0, Math.min(1, value));
  return (
    <span className={`meter ${tone}`} role="meter" aria-valuenow={Math.round(part * 100)} aria-valuemin={0} aria-valuemax={100} aria-label={label ?? "share"}>
      <i style={{ width: `${part * 100}%` }} />
    </span>
  );
}
