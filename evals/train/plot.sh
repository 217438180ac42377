#!/bin/sh
# Pictures of what was measured, by gnuplot.
#
#   plot.sh loss OUT.png TITLE=FILE.csv:COLUMN...           losses by step
#   plot.sh distinct OUT.png PREFIX-distinct.csv TEXT       experts touched by t tokens, of usage.py
#   plot.sh share OUT.png PREFIX-share.csv TEXT             how often each expert is chosen
set -eu
what=$1 out=$2
shift 2
look="set terminal pngcairo size 800,480 font 'sans,11'; set output '$out'; set datafile separator ','; set grid; set key top right"
case $what in
loss)
    lines=
    for x; do
        title=${x%%=*} rest=${x#*=}
        lines="$lines${lines:+, }'${rest%:*}' using 'step':'${rest##*:}' with lines title '$title'"
    done
    gnuplot -e "$look; set xlabel 'step'; set ylabel 'nats per token'; plot $lines" ;;
distinct)
    row="(strcol('text') eq '$2' ? column('t') : NaN)"
    gnuplot -e "$look; set key bottom right; set xlabel 'tokens'; set ylabel 'distinct experts per layer'; set logscale x 2; \
        plot '$1' using $row:'batch' with linespoints title 'tokens of different texts', \
        '' using $row:'neighbours' with linespoints title 'neighbouring tokens', \
        '' using $row:'independent' with lines dashtype 2 title 'N(t), independent and even'" ;;
share)
    gnuplot -e "$look; unset key; set xlabel 'expert'; set ylabel 'layer'; set cblabel 'share of choices'; set cbrange [0:*]; \
        set palette defined (0 'white', 1 'dark-blue'); \
        plot '$1' using (strcol('text') eq '$2' ? column('expert') : NaN):'layer':'share' with image" ;;
*)
    sed -n 's/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
