#!/bin/sh
# Pictures of the measured CSV files, by gnuplot.
#
#   plot.sh loss OUT.png TITLE=FILE.csv:COLUMN...           losses by step
#   plot.sh distinct OUT.png PREFIX-distinct.csv TEXT       distinct experts of t tokens, from usage.py
#   plot.sh share OUT.png PREFIX-share.csv TEXT             how often each expert is used
set -eu
what=$1 out=$2
shift 2
draw() {
    gnuplot <<END
set terminal pngcairo size 800,480 font 'sans,11'
set output '$out'
set datafile separator ','
set grid
$1
END
}
case $what in
loss)
    lines=
    for x; do
        title=${x%%=*} rest=${x#*=}
        lines="$lines${lines:+, }'${rest%:*}' using 'step':'${rest##*:}' with lines title \"$title\""
    done
    draw "set xlabel 'step'; set ylabel 'nats per token'; plot $lines" ;;
distinct)
    rows="< grep -E '^(text|$2),' $1"
    draw "set key bottom right; set xlabel 'tokens'; set ylabel 'distinct experts per layer'
        set logscale x 2; plot \"$rows\" \
            using 't':'batch' with linespoints title 'tokens of different texts', \
        '' using 't':'neighbours' with linespoints title 'neighbouring tokens', \
        '' using 't':'independent' with lines dashtype 2 title 'N(t): independent and even'" ;;
share)
    rows="< grep -E '^(text|$2),' $1"
    draw "unset key; set xlabel 'expert'; set ylabel 'layer'; set cblabel 'share of choices'
        set cbrange [0:*]; set palette defined (0 'white', 1 'dark-blue'); set xtics 1; set ytics 1
        set autoscale fix; unset grid; plot \"$rows\" using 'expert':'layer':'share' with image" ;;
*)
    sed -n 's/^# \{0,1\}//p' "$0"
    exit 2 ;;
esac
