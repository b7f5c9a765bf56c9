#!/usr/bin/env bash
# The study on Fashion-MNIST: optimizers tuned alike, then measured with fresh seeds over a ladder of
# budgets and, with the learning rate tuned again, at three batch sizes.
NAME=fashion
source "$(dirname "$0")/study.sh"

four="lars:fashion nesterov:fashion sm3:fashion shampoo:fashion"
# Shampoo with the scale of LARS is not the authors' method. It is tuned alike and gets its own rows.
five="$four shampoo_lars_scale:fashion"
tuned=--tuned=$OUT/tuning/trials.json

# 24 trials for each optimizer, with a seed that is not used below. A trial is evaluated once, at
# its end, since only its final accuracy is compared.
sweep --recipes="$five" --trials=24 --seeds=1000 --config.eval_every_steps=58 --out="$OUT/tuning"

# The chosen hyperparameters, at six budgets of steps. The second call gives the four optimizers ten
# more seeds at three of the budgets.
sweep --recipes="$five" "$tuned" --budgets=34,40,48,58,70,84 --seeds=0:10 --out="$OUT/ladder"
sweep --recipes="$four" "$tuned" --budgets=48,58,70 --seeds=10:20 --out="$OUT/ladder"

# Tunes the peak learning rate again at a batch size, and measures at two budgets of steps. All batch
# sizes see the same numbers of examples, and are evaluated after each 24,576 examples.
at_batch_size() {  # BATCH SHORT_BUDGET LONG_BUDGET
  local folder=$OUT/batch_$(printf '%06d' "$1")
  local config=(--config.global_batch_size="$1" --config.model.bn_span="$1"
    --config.eval_every_steps=$((8 * 3072 / $1)))
  sweep --recipes="$four" "$tuned" --search=schedule.peak_learning_rate --trials=6 \
    --budgets="$3" --seeds=1000:1002 "${config[@]}" --out="$folder/tuning"
  sweep --recipes="$four" "$tuned" --tuned="$folder/tuning/trials.json" --budgets="$2,$3" \
    --seeds=0:8 "${config[@]}" --out="$folder"
}
at_batch_size 768 64 128
at_batch_size 1536 32 64
at_batch_size 3072 16 32

finish
