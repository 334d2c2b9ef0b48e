import { useInfiniteQuery } from "@tanstack/react-query";
import { get, type Query } from "../../api/client";
import type { Page } from "../../api/types";
import { Button } from "../button";

const MOST_TRIES = 5;

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
  // A change in between has all pages read again instead of one more: then it is asked for once more.
  const fetchNextPage = async () => {
    const wanted = (found.data?.pages.length ?? 0) + 1;
    for (let tries = 0; tries < MOST_TRIES; tries++) {
      const read = await found.fetchNextPage({ cancelRefetch: false });
      if (read.isError || !read.hasNextPage || (read.data?.pages.length ?? 0) >= wanted) return;
    }
  };
  return { ...found, fetchNextPage, rows: found.data?.pages.flatMap((page) => page.items) ?? [] };
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
