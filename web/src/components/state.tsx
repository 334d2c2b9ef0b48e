/** A state as a coloured dot and a word, and small labels. */
import type { ReactNode } from "react";
import { aboutOf, labelOf, toneOf } from "./states";

export function State({ state, label, about }: { state: string; label?: string; about?: string }) {
  return (
    <span className={`state ${toneOf(state)}`} title={about ?? aboutOf(state)}>
      <i aria-hidden="true" />
      {label ?? labelOf(state)}
    </span>
  );
}

/** The state of a run; a run with an open question is waiting for input. */
export function RunState({ state, asks }: { state: string; asks: boolean }) {
  return <State state={asks ? "waiting_for_input" : state} />;
}

export function Tag({ children, tone = "off" }: { children: ReactNode; tone?: string }) {
  const title = typeof children === "string" ? children : undefined; // A narrow column cuts a long one.
  return (
    <span className={`tag ${tone}`} title={title}>
      {children}
    </span>
  );
}
