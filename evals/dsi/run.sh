#!/bin/sh
# evals/dsi/run.sh - the table and the heat maps of distributed speculative inference: CSV and PNG.
#   evals/dsi/run.sh build/release/spillway evals/results/dsi/dsi-DATE
# The grid has 10,100 cells; the CSV has every fifth step, the pictures show all of it.
set -e
spillway=$1 to=$2 here=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$spillway" simulate dsi --preset table > "$to-table.csv"
"$spillway" simulate dsi --preset grid --method event > "$work/event.csv"
"$spillway" simulate dsi --preset grid --method offline > "$work/offline.csv"
"$spillway" simulate dsi --preset grid --method offline --authors > "$work/authors.csv"
for how in event offline authors; do
    awk -F, -v how=$how 'NR == 1 { if (how == "event") print "how," $0; next }
        int($1 * 100 + .5) % 5 == 0 && int($2 * 100 + .5) % 5 == 0 { print how "," $0 }' "$work/$how.csv"
    gnuplot -e "csv='$work/$how.csv'; png='$to-$how.png'" "$here/grid.gp"
done > "$to-grid.csv"
# least and greatest ratio over all cells, and where
for how in event offline authors; do
    awk -F, -v how=$how 'NR == 1 { for (i = 5; i <= NF; i++) name[i] = $i; next }
        { for (i = 5; i <= NF; i++) if ($i != "") {
            if (!n[i]++ || $i < least[i]) { least[i] = $i; where[i] = "drafter " $1 " acceptance " $2 }
            if ($i > most[i]) { most[i] = $i; top[i] = "drafter " $1 " acceptance " $2 }
            below[i] += $i < 0.99995 } }
        END { for (i = 5; i <= NF; i++) if (n[i])
            printf "%s,%s,%s,%s,%s,%s,%d\n", how, name[i], least[i], where[i], most[i], top[i], below[i] }' "$work/$how.csv"
done | { echo "how,ratio,least,at,most,at,cells_below_1"; cat; } > "$to-extremes.csv"
