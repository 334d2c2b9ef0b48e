/** A change on the server: send the request, show its result as a toast, refresh the page. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { showToast } from "../components/toasts";

interface Action<A, R> {
  request: (argument: A) => Promise<R>;
  /** The toast after success. */
  message?: (result: R, argument: A) => string;
  onSuccess?: (result: R, argument: A) => void;
}

export function useAction<A = void, R = unknown>({ request, message, onSuccess }: Action<A, R>) {
  const client = useQueryClient();
  return useMutation<R, Error, A>({
    mutationFn: request,
    onSuccess: (result, argument) => {
      if (message) showToast(message(result, argument));
      onSuccess?.(result, argument);
      window.setTimeout(() => void client.invalidateQueries()); // Deferred, so that queries of a closed dialog are not refetched.
    },
    onError: (error) => showToast(error.message, { isError: true }),
  });
}
