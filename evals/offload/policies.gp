# evals/offload/policies.gp - misses over Belady's, by share that fits: a row for each trace, a column for each batch.
#   gnuplot -e "csv='evals/results/offload/policy-DATE.csv'; png='evals/results/offload/policy-DATE.png'" evals/offload/policies.gp
set datafile separator ","
set terminal pngcairo size 1200,1200 font "sans,9"
set output png
set multiplot layout 4,3 title "Experts read, times what Belady's optimum reads"
set logscale y 2
set xrange [5:95]
set grid ytics lc rgb "#dddddd"
set key top left samplen 1.5
traces = "demo q30 mild sharp"
batches = "1 8 32"
policies = "ours oracle lru lfu mru s3fifo fixed"
do for [t in traces] {
    do for [b in batches] {
        set title sprintf("%s, batch %s", t, b)
        set xlabel "% of the experts fit"
        plot for [i=1:words(policies)] \
            sprintf("< awk -F, '$1 == \"%s\" && $2 == %s && $3 == 0 && $5 == \"%s\"' %s", t, b, word(policies, i), csv) \
            using 4:8 with linespoints lw (i == 1 ? 3 : 1) lc i pt i ps 0.7 title word(policies, i)
        unset key
    }
}
unset multiplot
