# evals/dsi/blocking.awk - the published column, as far as one blocking pass explains it.
#   awk -f evals/dsi/blocking.awk evals/results/dsi/dsi-DATE-table.csv
# In the authors' threaded program every start, and every restart after a rejection, begins with a target
# pass without a draft. DSI runs it beside the drafting; SI waits for it, and gets no token from it. Here that
# pass is charged to SI, at most 20 drafts in a row are right, and both take the best of lookahead 1, 5 and
# 10; without threads and first-token times.
BEGIN { FS = OFS = ","; srand(1); n = split("1 5 10", lookahead, " "); print "data,published,with_blocking" }
NR > 1 {
    best_si = best_dsi = 1e30
    for (i = 1; i <= n; i++) {
        k = lookahead[i]; si = dsi = 0; block = k * $5
        for (r = 0; r < 2000; r++)
            for (at = 0; at < 50; at += right + 1) {
                for (right = 0; right < 20 && rand() < $6; right++)
                    ;
                blocks = int(right / k) + 1
                si += $4 + blocks * (block + $4)
                dsi += blocks * block + $4
            }
        if (si < best_si) best_si = si
        if ($4 <= 7 * block && dsi < best_dsi) best_dsi = dsi
    }
    printf "%s %s,%s,%.2f\n", $1, $3, $7, best_si / best_dsi
}
