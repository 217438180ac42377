# evals/dsi/grid.gp - the four ratios of figure 2 over drafter latency and acceptance.
#   gnuplot -e "csv='grid.csv'; png='grid.png'" evals/dsi/grid.gp
# Colour scales end at the published figure's limits: 10, 2, 3 and 1.6; blue is slower.
set datafile separator ","
set terminal pngcairo size 1000,900 font "sans,9"
set output png
set multiplot layout 2,2
set xlabel "drafter latency, of the target's"
set ylabel "acceptance"
set xrange [0.005:1.005]
set yrange [-0.005:1.005]
set size ratio 1
unset key
titles = "'plain decoding / SI' 'SI / DSI' 'plain decoding / DSI' 'the better of both / DSI'"
most = "10 2 3 1.6"
do for [i=1:4] {
    top = word(most, i) + 0
    set title word(titles, i)
    low = top > 2 ? 0.5 : 1 - (top - 1) / 4.0
    set cbrange [low:top]
    set palette defined (low "#2060c0", 0.9999 "#c8d8f0", 1 "#ffffff", (1 + top) / 2.0 "#f0a040", top "#a01010")
    plot csv using 1:2:(column(4 + i)) every ::1 with image
}
unset multiplot
