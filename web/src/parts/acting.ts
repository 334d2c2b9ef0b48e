/** Doing things: one way to ask the server for a change, say what came of it, and look again. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { say } from "./toasts";

interface Acting<A, R> {
  act: (argument: A) => Promise<R>;
  /** What to say when it is done. */
  told?: (result: R, argument: A) => string;
  then?: (result: R, argument: A) => void;
}

/** A change; afterwards everything on the page is asked for again. */
export function useAction<A = void, R = unknown>({ act, told, then }: Acting<A, R>) {
  const client = useQueryClient();
  return useMutation<R, Error, A>({
    mutationFn: act,
    onSuccess: (result, argument) => {
      if (told) say(told(result, argument));
      then?.(result, argument);
      window.setTimeout(() => void client.invalidateQueries()); // What has just left the page is not asked for again.
    },
    onError: (error) => say(error.message, { bad: true }),
  });
}
