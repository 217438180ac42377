# Draws run.sh sparsity: target efficiency T(B, 1) / T(B, rows) by batch, with 4 drafted, and the resulting speed-up at
# an acceptance rate of 0.8, measured and by the fitted model; in memory, and with half of the model in memory.
set datafile separator ","
set terminal pngcairo size 1100,800 font "sans,10"
set output png
set multiplot layout 2,2
set logscale x 2
set grid lc rgb "#dddddd"
set xlabel "sequences"
tokens(k) = (1 - 0.8 ** (k + 1)) / 0.2
cut(k, tier) = sprintf("< awk -F, '$1 == %s && $2 == \"%s\" && $4 == 4' %s", k, tier, csv)
do for [tier in "memory disk"] {
    set title tier eq "memory" ? "All in memory" : "Half in memory, the rest read from disk"
    set ylabel "target efficiency, 4 drafted"
    set key right bottom
    plot for [i=1:words(used)] cut(word(used, i), tier) using 3:9 with linespoints lw 2 lc i pt 7 title word(used, i)." experts used of 128", \
         for [i=1:words(used)] cut(word(used, i), tier) using 3:10 with lines dt 2 lc i notitle
    set ylabel "speed-up, acceptance 0.8 (dashes: model)"
    plot for [i=1:words(used)] cut(word(used, i), tier) using 3:($9 * tokens(4)) with linespoints lw 2 lc i pt 7 notitle, \
         for [i=1:words(used)] cut(word(used, i), tier) using 3:($10 * tokens(4)) with lines dt 2 lc i notitle, \
         1 with lines lc rgb "#888888" notitle
}
unset multiplot
