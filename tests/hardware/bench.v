// Gives an accelerator the streams of files, and writes its results, and a line whenever it takes a pass: the cycle, the stalls of the pass
// before, and how many beats, words, parameters and results there have been.
`timescale 1ns / 1ns

module bench;
  // Numbers of payloads, and their bits: NUM_PASSES, BITS_PASSES, ...
  `include "sizes.v"

  reg [BITS_PASSES-1:0] passes[0:NUM_PASSES];
  reg [BITS_ROWS-1:0] rows[0:NUM_ROWS];
  reg [BITS_WORDS-1:0] words[0:NUM_WORDS];
  reg [BITS_PARAMETERS-1:0] parameters[0:NUM_PARAMETERS];
  reg clk = 0, rst = 1;
  integer cycle = 0, pass = 0, row = 0, word = 0, parameter_set = 0, num_results = 0, file;
  wire takes_pass, takes_row, takes_word, takes_parameters, gives_result;
  wire [BITS_RESULTS-1:0] result;
  wire [95:0] stalls;

  accelerator accelerator (
      .clk(clk),
      .rst(rst),
      .passes__payload(passes[pass]),
      .passes__valid(pass < NUM_PASSES),
      .passes__ready(takes_pass),
      .rows__payload(rows[row]),
      .rows__valid(row < NUM_ROWS),
      .rows__ready(takes_row),
      .words__payload(words[word]),
      .words__valid(word < NUM_WORDS),
      .words__ready(takes_word),
      .parameters__payload(parameters[parameter_set]),
      .parameters__valid(parameter_set < NUM_PARAMETERS),
      .parameters__ready(takes_parameters),
      .results__payload(result),
      .results__valid(gives_result),
      .stalls(stalls)
  );

  initial begin
    $readmemh("passes.hex", passes);
    $readmemh("rows.hex", rows);
    $readmemh("words.hex", words);
    $readmemh("parameters.hex", parameters);
    file = $fopen("results.hex", "w");
  end

  always #1 clk = ~clk;

  always @(posedge clk) begin
    rst <= 0;
    if (!rst) begin
      cycle <= cycle + 1;
      if (takes_row && row < NUM_ROWS) row <= row + 1;
      if (takes_word && word < NUM_WORDS) word <= word + 1;
      if (takes_parameters && parameter_set < NUM_PARAMETERS) parameter_set <= parameter_set + 1;
      if (gives_result) begin
        $fdisplay(file, "%h", result);
        num_results <= num_results + 1;
      end
      if (takes_pass) begin
        $display("pass %0d %0d %0d %0d %0d %0d %0d %0d", cycle, stalls[31:0], stalls[63:32], stalls[95:64], row, word, parameter_set,
                 num_results);
        pass <= pass + 1;
        if (pass == NUM_PASSES) begin
          $fclose(file);
          $finish;
        end
      end
    end
  end
endmodule
