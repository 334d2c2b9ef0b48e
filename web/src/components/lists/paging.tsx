import { useInfiniteQuery } from "@tanstack/react-query";
import { get, type Query } from "../../api/client";
import type { Page } from "../../api/types";
import { Button } from "../button";

/** A list read page by page with the API's cursor, newest first; with an interval (ms), read again and again. */
export function usePages<T>(name: string, path: string, query: Query, refetchInterval?: number) {
  const found = useInfiniteQuery({
    queryKey: [name, query],
    queryFn: ({ pageParam }) => get<Page<T>>(path, { ...query, cursor: pageParam }),
    refetchInterval,
    initialPageParam: "",
    getNextPageParam: (page) => page.next ?? undefined,
    placeholderData: (before) => before,
  });
  return { ...found, rows: found.data?.pages.flatMap((page) => page.items) ?? [] };
}

export function MoreRows({ pages }: { pages: { hasNextPage: boolean; isFetchingNextPage: boolean; fetchNextPage: () => unknown } }) {
  if (!pages.hasNextPage) return null;
  return (
    <div className="more">
      <Button busy={pages.isFetchingNextPage} onClick={() => void pages.fetchNextPage()}>
        Load more
      </Button>
    </div>
  );
}
